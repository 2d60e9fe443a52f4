# Turns a page printed by mandoc into one line per paragraph, with single blanks and without the lines of tables.
s/.\x08//g
1d
$d
s/[│║┃]/ /g
/^[[:space:]─━═┌┐└┘├┤┬┴┼╔╗╚╝╠╣╦╩╬╒╓╕╖╘╙╛╜╞╡╟╢╤╥╧╨╪╫_-]*$/d
s/[[:space:]]+/ /g
s/^ //
s/ $//
