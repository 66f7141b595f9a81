# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the images of bags, and writes bags of the node's messages.

``offline/tools/detect_bag.py`` has the options of the command. Then read in this order:

    preparation    makes a Request into Work: finds the `cameras` of each bag, makes a `plan` for
                   it, and reads what earlier commands have written from its `ledger`
    work           runs the missing parts of all bags, and joins each part when it is the next one
    workers        processes that run parts; `ray_workers` has workers on several machines
    part           what processes exchange: Job, Part and ModelFacts
    part_runner    runs the model on a part; `image_reading` reads its images ahead, and
                   `result_messages` serialises results
    records        the file with the raw results of a part
    joining        makes the raw results of a part into a file of the new bag, with tracks
    work_text      what the command prints; `bag_page` makes the report from a `bag_summary`, and
                   `index_page` the page that lists several bags
"""
