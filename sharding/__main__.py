"""`python -m sharding`, the same as the command `shard-my-repo`."""

from sharding.cli.start import main

main()
