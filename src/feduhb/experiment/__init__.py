"""The composition root: settings become federations, methods and engines, and runs are carried out."""
