"""The log of one operator's task: what was appended, and the futures of what becomes durable."""
