"""Work in several processes: of this machine, or of a Ray cluster."""

from turngap.workers.base import Done, Executor, Lost, Tell, Told, Work, here
from turngap.workers.local import LocalWorkers

__all__ = ["Done", "Executor", "LocalWorkers", "Lost", "Tell", "Told", "Work", "here"]
