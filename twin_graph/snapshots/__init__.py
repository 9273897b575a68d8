"""The store on disk: snapshots, the ledger, the folder of a run. Nothing here imports TensorFlow."""
