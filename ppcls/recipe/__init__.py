"""The config of a run: joins the sections of all folders, and reads YAML files, also those of PaddleClas."""
