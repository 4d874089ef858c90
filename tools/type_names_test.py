"""Which definitions are seen in C++, and which of one name are refused."""

import unittest

from tools import type_names


def names(text):
    return [found.name for found in type_names.definitions("a.h", text)]


class DefinitionsTest(unittest.TestCase):

    def test_types_are_named_with_their_namespaces(self):
        self.assertEqual(names("namespace a {\nnamespace b::c {\nclass D final : public E {};\n}\n}"),
                         ["a::b::c::D"])
        self.assertEqual(names("struct A {\n  int x = 0;\n};\nenum class B : int { kOne };\nunion C {};"),
                         ["A", "B", "C"])

    def test_a_line_is_the_one_of_the_opening_brace(self):
        found = type_names.definitions("a.h", "/* two\nlines */\nstruct A\n    : B {};\n")
        self.assertEqual(found, [type_names.Definition("A", "a.h", 4)])

    def test_templates_and_their_specialisations_are_types(self):
        self.assertEqual(names("template <typename T = int, class = void>\nclass A {};"), ["A"])
        self.assertEqual(names("template <>\nstruct A<int, B<char>> : C {};"), ["A<int,B<char>>"])
        self.assertEqual(names("struct Outer::Inner {};"), ["Outer::Inner"])

    def test_attributes_and_macros_before_a_name_are_not_the_name(self):
        self.assertEqual(names("class ABSL_LOCKABLE A {};"), ["A"])
        self.assertEqual(names("struct alignas(64) [[nodiscard]] A {};"), ["A"])
        self.assertEqual(names("class CAPABILITY(\"mutex\") A {};"), ["A"])

    def test_what_cannot_clash_is_not_seen(self):
        self.assertEqual(names("namespace {\nstruct A {};\n}"), [])
        self.assertEqual(names("namespace a {\nnamespace {\nstruct A {};\n}\n}"), [])
        self.assertEqual(names("void F() {\n  struct A {};\n}"), [])
        self.assertEqual(names("struct A {\n  struct B {};\n};"), ["A"])
        self.assertEqual(names("class A;\nstruct B;"), [])

    def test_functions_and_values_of_a_type_are_no_definitions(self):
        self.assertEqual(names("struct stat Look() { return {}; }"), [])
        self.assertEqual(names("struct stat kNone = {};"), [])
        self.assertEqual(names("template <class T>\nvoid F() {}"), [])

    def test_comments_strings_and_macros_are_not_read(self):
        self.assertEqual(names("// struct A {\n/* struct B { */\nstruct C {};"), ["C"])
        self.assertEqual(names('const char* s = "struct A {";\nconst char* r = R"x(struct B {)x";'), [])
        self.assertEqual(names("#define A \\\n  struct B {};\nconst char c = '{';\nlong n = 1'000'000;\nstruct D {};"),
                         ["D"])


class ClashesTest(unittest.TestCase):

    def definitions(self):
        return (type_names.definitions("a.h", "namespace n {\nstruct A {};\nstruct B {};\n}") +
                type_names.definitions("b.cc", "namespace n {\n\nstruct A {};\n}\nstruct B {};"))

    def test_one_name_in_two_files_is_named_with_both_places(self):
        self.assertEqual(type_names.clashes(self.definitions(), {}),
                         [("n::A", [type_names.Definition("n::A", "a.h", 2),
                                    type_names.Definition("n::A", "b.cc", 3)])])

    def test_an_exception_may_be_defined_twice(self):
        self.assertEqual(type_names.clashes(self.definitions(), {"n::A": "never in one program"}), [])

    def test_two_definitions_in_one_file_are_the_compilers_to_refuse(self):
        twice = type_names.definitions("a.h", "#if X\nstruct A {};\n#else\nstruct A {};\n#endif")
        self.assertEqual(type_names.clashes(twice, {}), [])


if __name__ == "__main__":
    unittest.main()
