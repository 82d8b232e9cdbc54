"""`tf.distribute.cluster_resolver`'s names."""

from __future__ import annotations

from paceline.cluster.resolvers import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
)

__all__ = ["ClusterResolver", "SimpleClusterResolver", "TFConfigClusterResolver"]
