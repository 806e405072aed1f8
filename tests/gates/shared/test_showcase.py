from workbench.gates.shared.showcase import too_slow


def test_a_disk_that_this_machine_can_not_stand_for_is_named():
    assert too_slow("", {}) == ""
    assert too_slow("usb-10gbps", {"overdue_share": "0.0400"}) == ""
    assert too_slow("usb-10gbps", {"overdue_share": "0.4000"}).startswith("usb-10gbps is emulated too slowly: 40%")
