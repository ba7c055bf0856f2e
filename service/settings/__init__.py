"""Settings of an operator, read once and passed on as plain values."""

from service.settings.schema import Settings as Settings
from service.settings.schema import export_environment as export_environment
from service.settings.schema import file_of as file_of
from service.settings.schema import worker_environment as worker_environment
