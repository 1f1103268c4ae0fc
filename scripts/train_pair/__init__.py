"""Make the bundled pair: data, training, export and evaluation."""
