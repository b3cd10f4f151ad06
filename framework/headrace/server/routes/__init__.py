"""Routes of the management plane, one file per topic. Their paths lack the prefix. `litestar_app` names the topics."""
