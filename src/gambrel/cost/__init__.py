"""What a workload costs on a device: bounds, capacity, the crossover batch, whole requests."""
