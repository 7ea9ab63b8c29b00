"""Tests of trainings on graphs."""
