"""What a step costs: measured curves, or a roofline of the device."""
