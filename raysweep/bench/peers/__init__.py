"""What raysweep is measured against: adapters of other libraries, and straightforward programs."""
