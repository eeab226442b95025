"""A simulated job whose every storage request can fail, and its oracle: see its `README.md`."""
