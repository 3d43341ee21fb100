# /// script
# requires-python = ">=3.11"
# dependencies = ["shard-my-repo @ git+https://huggingface.co/spaces/OWNER/shard-my-repo"]
#
# [tool.hf-jobs]
# flavor = "cpu-upgrade"
# timeout = "6h"
# secrets = ["HF_TOKEN"]
# ///
"""Do what `shard-my-repo shard` does, on rented hardware: `hf jobs uv run …/jobs/shard.py SOURCE DESTINATION`."""

import sys

from sharding.cli.start import main

sys.argv[1:1] = ["shard"]
main()
