"""Engines that come and go while a run trains."""
