"""The metrics service: what a run has logged, over HTTP while it runs, and a place to post metrics of one's own."""
