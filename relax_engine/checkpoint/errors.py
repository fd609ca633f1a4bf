"""Errors of checkpoint directories, import and export, and of the models inside."""


class CheckpointError(RuntimeError):
    """Base of every error raised on purpose about a checkpoint on disk."""


class CheckpointSchemaError(CheckpointError):
    """Written in a layout this release does not know."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No complete checkpoint where one was expected."""


class DamagedCheckpointError(CheckpointError):
    """A file or tensor of the checkpoint is missing, truncated or of the wrong shape."""


class OutputExistsError(CheckpointError, FileExistsError):
    """The output directory already holds something."""


class UnsupportedModelError(ValueError):
    """The family is known, but this configuration of it is not supported."""
