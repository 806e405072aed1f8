from workbench.markdown import format_cell, markdown_table


def test_a_table_aligns_numbers_right_and_text_left():
    table = markdown_table([{"name": "a", "bytes": 12345, "share": 0.123456}, {"name": "long name", "bytes": 7, "share": None}])
    assert table.splitlines() == [
        "| name      |  bytes |  share |",
        "|-----------|-------:|-------:|",
        "| a         | 12,345 | 0.1235 |",
        "| long name |      7 |      - |",
    ]


def test_cells_of_every_kind():
    cells = [format_cell(value) for value in (None, True, 1234, 12345.6, 0.00012345, "a|b", float("inf"))]
    assert cells == ["-", "yes", "1,234", "12,346", "0.0001234", "a\\|b", "inf"]


def test_no_rows_are_said_to_be_none():
    assert markdown_table([]) == "(nothing)"
