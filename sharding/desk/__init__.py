"""Run jobs for many visitors: one child process a job, in a queue, seen and stopped by their owners only."""

from sharding.desk.desk import Desk
from sharding.desk.forecast import Forecast
from sharding.desk.jobs import JobRequest, JobStatus, Settings, State, destination_of

__all__ = ["Desk", "Forecast", "JobRequest", "JobStatus", "Settings", "State", "destination_of"]
