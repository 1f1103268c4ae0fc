"""What a request asks for: checked values with every default filled in."""
