"""State and files as DataFrame operations: for each the plan on the driver, and the work inside its tasks."""
