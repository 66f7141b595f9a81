"""What a model is: tensors, preprocessing, manifest, model file, layouts of inputs and outputs."""
