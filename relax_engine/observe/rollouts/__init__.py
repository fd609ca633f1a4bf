"""Every sample of a run, on disk beside it: recording without waiting, and looking into what was recorded.

Two tables in `rollouts` in the run directory: `samples`, written where samples come to be, and `training`, what
training made of them, written by the actor. Their rows meet in the sample's index.
"""
