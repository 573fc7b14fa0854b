"""Attribution of differences to modules, and the checks of a comparison."""
