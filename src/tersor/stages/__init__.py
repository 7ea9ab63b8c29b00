"""The parts codecs are composed of: transforms, quantizers, predictors and encoders."""
