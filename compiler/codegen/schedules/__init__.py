"""Schedules: what may be chosen for a kernel, and the rewrites that bind a nest to a device."""
