"""What an engine step costs: by measured curves, or by a roofline of the device."""
