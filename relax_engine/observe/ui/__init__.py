"""The dashboard: one page over the files of runs, the same while they grow and afterwards.

It reads run directories and the artifact store, and asks no process of a run.
"""
