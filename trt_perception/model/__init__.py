"""What a model is: tensors, preprocessing, manifest, files, layouts of inputs and outputs."""
