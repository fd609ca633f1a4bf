"""Rules between fields, one small function each, grouped by subject; `relax_engine.config.doctor` runs them all."""
