"""The codecs in real TorchRec models; run by ``make test-torchrec`` in an environment of their own."""
