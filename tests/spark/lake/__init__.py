"""An object store for the tests of lakes: S3 by moto, Hadoop's S3A for Spark, and cuts at a request of one's choice."""
