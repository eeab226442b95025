"""The log of one operator's task: the appended changes, and the futures of those that become durable."""
