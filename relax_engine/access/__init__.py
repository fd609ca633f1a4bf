"""Who may call the run's HTTP APIs: the token, where it is kept, and the guard in front of every API."""
