"""How test code is compiled that neither measures nor computes at length: for speed of compilation."""

TEST_COPTS = select({
    "//third_party:debuggable_tests": [],
    "//conditions:default": ["-O1", "-g0"],
})
