"""One file per configuration section: types, defaults, units, bounds and the sentences that `--help` prints."""
