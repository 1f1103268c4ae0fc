"""What a pair needs of a device's memory: counted, planned, and whether it fits."""
