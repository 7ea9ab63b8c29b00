"""Tests of trainings on images."""
