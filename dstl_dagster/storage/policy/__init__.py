"""When a request to a store is made, and made again: retries, the rate, and the time between two changes."""
