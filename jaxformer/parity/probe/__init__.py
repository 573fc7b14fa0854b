"""Parameters and inputs that leave no bug unseen."""
