"""The machine and the compiler that programs run on."""
