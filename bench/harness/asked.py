"""Ask a fresh desk for the forecast of a job, as the page does, and if wanted let it do the job.

python -m bench.harness.asked SOURCE DESK [DESTINATION], with HF_ENDPOINT and HF_TOKEN set. Prints JSON.
"""

import argparse
import json
import time
from pathlib import Path

from huggingface_hub import HfApi, get_token

from sharding.core.environment import hub_endpoint
from sharding.core.options import Options
from sharding.core.text import time_range
from sharding.desk import Desk, JobRequest, Settings
from sharding.desk.jobs import ACTIVE
from sharding.planning.sizes import usual_size
from sharding.storage.hub.answers import person_of


def main() -> None:
    """Plan in the usual size, print the forecast, and how long the job took if there is a destination."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("desk", type=Path)
    parser.add_argument("destination", nargs="?")
    asked = parser.parse_args()
    endpoint, token = hub_endpoint(), get_token() or ""
    with Desk(Settings(asked.desk, endpoint)) as desk:
        read = desk.models.inspect(asked.source, token=token)
        size = usual_size(read.total_bytes, max(tensor.bytes for tensor in read.tensors))
        checkpoint, plan = desk.models.plan(asked.source, Options(size), token)
        forecast = desk.forecast(checkpoint, plan)
        told = {
            "lower": forecast.lower_seconds,
            "upper": forecast.upper_seconds,
            "shown": time_range(forecast.lower_seconds, forecast.upper_seconds),
            "bytes": plan.total_bytes,
            "tensors": len(plan.tensors),
            "source_files": len(checkpoint.weight_files),
            "files": len(plan.shards),
        }
        if asked.destination:
            who = person_of(HfApi(endpoint, token).whoami())
            job = desk.submit(JobRequest(asked.source, asked.destination, Options(size)), who, token)
            while (last := desk.status(job, who.name)) is None or last.state in ACTIVE:
                time.sleep(0.2)
            if last.state != "done" or last.ended is None:
                raise SystemExit(f"The job has {last.state}: {last.error}")
            told["seconds"] = last.ended - last.created
    print(json.dumps(told))


if __name__ == "__main__":
    main()
