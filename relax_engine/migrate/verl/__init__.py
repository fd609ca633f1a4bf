"""verl's settings (and RedAccel's, which are built on them) in terms of our flags."""
