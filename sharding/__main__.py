"""Run the command `shard-my-repo` as `python -m sharding`."""

from sharding.cli.start import main

main()
