"""`Sample` under the path that existing recipes import."""

from relax_engine.types import Sample, SampleStatus

__all__ = ["Sample", "SampleStatus"]
