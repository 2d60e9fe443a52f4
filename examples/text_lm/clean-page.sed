# A page as mandoc prints it -> one line per paragraph, single blanks, no rules of tables.
s/.\x08//g
1d
$d
s/[│║┃]/ /g
/^[[:space:]─━═┌┐└┘├┤┬┴┼╔╗╚╝╠╣╦╩╬╒╓╕╖╘╙╛╜╞╡╟╢╤╥╧╨╪╫_-]*$/d
s/[[:space:]]+/ /g
s/^ //
s/ $//
