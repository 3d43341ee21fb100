"""Run visitors' jobs from a queue, each in its own process; only the owner of a job can see or stop it."""

from sharding.desk.desk import Desk
from sharding.desk.forecast import Forecast
from sharding.desk.jobs import JobRequest, JobStatus, Settings, State, destination_of

__all__ = ["Desk", "Forecast", "JobRequest", "JobStatus", "Settings", "State", "destination_of"]
